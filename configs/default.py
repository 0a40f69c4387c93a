"""The configuration of a training run, with its presets.

    python -m coorl_jax.train --config=configs/default.py:smoke --config.seed=1

Presets: `smoke` shows in four to eight minutes that everything works, `cpu` learns to beat all bots
on a laptop, `gpu` is the same for a single accelerator, `large` has the biggest network, `deep_cfr`
is Deep CFR as it was published, without values, `ppo` the control, `exploit` an answer to a fixed
player, and `predecessor` the workload of the program this one replaces. Without a preset, `cpu` or
`gpu` is chosen by the device that jax finds. Any field can be given on the command line after the
file, e.g. `--config.traversal.lanes=4096`.
"""

import ml_collections


def get_config(preset: str | None = None) -> ml_collections.ConfigDict:
    """Return the configuration of a preset; None chooses cpu or gpu by the device found."""
    if preset is None:
        preset = _preset_for_device()
    if preset not in _PRESETS:
        raise ValueError(
            f"preset {preset!r}: must be one of {', '.join(_PRESETS)}; "
            "e.g. configs/default.py:smoke"
        )
    config = _base()
    config.preset = preset
    _PRESETS[preset](config)
    return config


def _base() -> ml_collections.ConfigDict:
    """Return every field; these values are those of `deep_cfr`, the other presets change some."""
    config = ml_collections.ConfigDict()
    # The preset these values come from (a record, no effect).
    config.preset = "deep_cfr"
    # Name of the run: the last part of its directory's name.
    config.name = "lost-cities"
    # Seed of every random number of the run.
    config.seed = 0
    # cfr (Deep CFR) or ppo (proximal policy optimisation: the control, and what learns to exploit a
    # fixed player).
    config.algorithm = "cfr"
    # Iterations until the run ends.
    config.iterations = 200
    # Points that make one unit of utility: advantages are learnt in these units.
    config.utility_scale = 50.0

    config.game = game = ml_collections.ConfigDict()
    # lost_cities, kuhn_poker or leduc_poker; the other fields are the game's rule parameters.
    game.name = "lost_cities"
    # Colours.
    game.colors = 5
    # Number cards of a colour.
    game.ranks = 9
    # Face value of the lowest number card, points.
    game.min_rank = 2
    # Wager cards of a colour.
    game.wagers = 3
    # Cards in a hand.
    game.hand_size = 8
    # Points an opened expedition starts from.
    game.expedition_penalty = -20
    # Cards in an expedition that earn the bonus.
    game.bonus_threshold = 8
    # The bonus, points.
    game.bonus_amount = 20
    # Draws from discard piles allowed in a round, both players together; None = no limit (the
    # tabletop rule, whose rounds need not end, so that it cannot be trained).
    game.max_discard_draws = ml_collections.FieldReference(60, field_type=object)

    config.network = network = ml_collections.ConfigDict()
    # cards (equivariant to permutations of the colours) or mlp.
    network.kind = "cards"
    # Units of a hidden layer.
    network.width = 64
    # Hidden layers (mlp), or blocks (cards).
    network.depth = 3
    # Layer normalisation after each hidden layer (mlp only).
    network.layer_norm = False
    # Residual connections around hidden layers (mlp only).
    network.residual = False
    # One network per seat instead of one for both.
    network.per_player = False

    config.precision = precision = ml_collections.ConfigDict()
    # What networks compute in during traversals: float32, tf32 (float32, but products as the device
    # makes them fastest: TF32 on a GPU, bfloat16 on a TPU, float32 on a CPU) or bfloat16 (products
    # and activations; parameters, outputs and losses are float32 in any case).
    precision.traversal = "tf32"
    # The same in evaluations and tests against the best, and wherever saved policies play.
    precision.evaluation = "tf32"
    # The same in fits.
    precision.fit = "tf32"

    config.traversal = traversal = ml_collections.ConfigDict()
    # How regrets are sampled. Without a value network: branch (force every action at one node of a
    # path), outcome (one action a node), external (every action at every node of the traverser;
    # small games), robust (a few of them at every node; small games). With one: baseline (outcome,
    # with most of its noise taken away) or critic (its opinion alone).
    traversal.scheme = "branch"
    # Traversals per iteration for each of its traversers.
    traversal.traversals = 1024
    # Whether players take turns, iteration by iteration, as the traverser whose advantages are
    # updated, or are both updated in every iteration.
    traversal.alternating = False
    # Traversals that advance together.
    traversal.lanes = 128
    # Traversal machines that share them, each in a thread of its own: with two, a CPU's cores are
    # all busy. 0 = two on a CPU, one on anything else.
    traversal.machines = 0
    # Probability with which the traverser's sampling policy draws uniformly, in [0, 1].
    traversal.exploration = 0.1
    # Nodes of one path at which several actions are tried (external and robust only).
    traversal.max_branching_nodes = 2
    # How many actions those are (robust only).
    traversal.branching_actions = 2
    # Policy where no advantage is positive: argmax (the highest one) or uniform.
    traversal.fallback = "argmax"
    # How often returns to parent nodes are resolved per network evaluation, at most (performance
    # only).
    traversal.pops_per_pass = 16

    config.memory = memory = ml_collections.ConfigDict()
    # Samples kept for the advantage network.
    memory.advantage_capacity = 1_000_000
    # Samples kept for the average policy.
    memory.strategy_capacity = 1_000_000
    # Samples kept for the value network (baseline and critic only), of the current iteration alone.
    memory.value_capacity = 1_000_000
    # Stored precision of advantages and policies: bfloat16, float16 or float32. Values are float32.
    memory.target_dtype = "bfloat16"

    config.advantage = advantage = ml_collections.ConfigDict()
    # scratch (new parameters in every iteration, as in Deep CFR) or warm (go on from the last).
    advantage.start = "scratch"
    # Gradient steps per iteration.
    advantage.updates = 300
    # Samples per gradient step.
    advantage.batch_size = 512
    # Adam's learning rate in the first iteration.
    advantage.learning_rate = 1e-3
    # Iterations after which it is half of that: in iteration t it is divided by
    # 1 + (t - 1) / decay_iterations; 0 = it stays.
    advantage.decay_iterations = 0
    # Whether it also falls within each fit, linearly to 0, so that the last updates settle.
    advantage.annealed = False
    # Largest norm of the gradient; longer ones are scaled down.
    advantage.gradient_clip = 1.0
    # Weight of a sample of iteration t: uniform (1), linear (t) or discounted (t ** discount).
    advantage.weighting = "linear"
    # The exponent of discounted.
    advantage.discount = 2.0
    # How advantages accumulate over iterations: reservoir (one fit to samples of all iterations) or
    # bootstrapped (a fit to this iteration's samples and the last network's output, with weights as
    # above; needs start = warm).
    advantage.cumulative = "reservoir"
    # Least share of this iteration in what is accumulated (bootstrapped only), in [0, 1]: with 0.1
    # old iterations are forgotten by a tenth an iteration.
    advantage.min_step = 0.0
    # Whether accumulated advantages below 0 are kept (bootstrapped only), or count as 0 in the next
    # iteration, as in CFR+.
    advantage.keep_negative = False

    config.strategy = strategy = ml_collections.ConfigDict()
    # These nine as for the advantage network; the weights are also the mixture's.
    strategy.start = "warm"
    strategy.updates = 150
    strategy.batch_size = 512
    strategy.learning_rate = 1e-3
    strategy.decay_iterations = 0
    strategy.annealed = False
    strategy.gradient_clip = 1.0
    strategy.weighting = "linear"
    strategy.discount = 2.0
    # Iterations between two fits of the average policy, after the first; in between, and after a
    # last iteration that is no multiple, the average policy is that of the last fit.
    strategy.every = 1

    config.value = value = ml_collections.ConfigDict()
    # The value network of baseline and critic: these seven as for the advantage network.
    value.start = "warm"
    value.updates = 150
    value.batch_size = 512
    value.learning_rate = 1e-3
    value.decay_iterations = 0
    value.annealed = False
    value.gradient_clip = 1.0
    # Lambda in [0, 1] of what it learns: 1 = the utilities that walks end with, 0 = its own opinion
    # one decision later.
    value.trace_decay = 0.9

    # The algorithm ppo. Of the sections above it reads game, network and precision; the others from
    # traversal to value are those of cfr.
    config.ppo = ppo = ml_collections.ConfigDict()
    # Rounds that advance together.
    ppo.lanes = 256
    # Decisions of an iteration in each of them, both players together; a multiple of 4.
    ppo.decisions = 32
    # Passes over an iteration's decisions.
    ppo.epochs = 2
    # Gradient steps of each.
    ppo.minibatches = 8
    # Adam's learning rate in the first iteration.
    ppo.learning_rate = 1e-3
    # Iterations after which it is half of that, as for the advantage network; 0 = it stays.
    ppo.decay_iterations = 0
    # Largest norm of either network's gradient; longer ones are scaled down.
    ppo.gradient_clip = 1.0
    # How far the probability ratio of an action may pay to leave 1.
    ppo.clip = 0.2
    # Lambda in [0, 1] of advantages and values: 1 = the utilities that rounds end with, 0 = the
    # value network's opinion one decision later.
    ppo.trace_decay = 0.95
    # Weight of the policy's entropy, nats.
    ppo.entropy = 0.01
    # Weight of the divergence KL(policy, reference); the reference is the policy as it was after
    # the last iteration that is a multiple of reference_every, before that what the run began with.
    ppo.reference_kl = 0.0
    ppo.reference_every = 20
    # The policy `average` has a moving average of the parameters, of which this share is kept in an
    # iteration; of the first t iterations it is the mean as long as 1 - 1/t is less.
    ppo.average_decay = 0.98
    # Whom it meets: itself, or a fixed player, a bot or a trained agent as in `tournament`.
    ppo.opponent = "itself"
    # What it begins with: scratch (new parameters), or the average policy and the values of a
    # trained agent with the same networks, by its directory.
    ppo.start = "scratch"

    config.mixture = mixture = ml_collections.ConfigDict()
    # Iterations whose advantage networks are kept for the policy `mixture`, a random choice of all
    # once there are more; 0 = none.
    mixture.capacity = 0

    config.evaluation = evaluation = ml_collections.ConfigDict()
    # Iterations between two full evaluations (also after the first and the last); 0 = never.
    evaluation.every = 20
    # Deals per opponent and policy, each played twice with the seats swapped.
    evaluation.pairs = 1000
    # Fixed players to meet: bots, or `opponent` for the one of ppo.opponent.
    evaluation.opponents = (
        "random",
        "discard_only",
        "heuristic_balanced",
        "heuristic_aggressive",
        "heuristic_cautious",
        "heuristic_noisy",
    )
    # Policies to evaluate: current (of the last iteration), average (of all, in one network; with
    # ppo, of averaged parameters),
    # mixture (a kept iteration's for each round, see mixture.capacity).
    evaluation.policies = ("current", "average")
    # light (who wins, by how much) or full (also how they play; Lost Cities only).
    evaluation.diagnostics = "full"
    # Compute exactly what best responses gain, in points (games small enough to enumerate only).
    evaluation.nash_conv = False

    config.light_evaluation = light_evaluation = ml_collections.ConfigDict()
    # These five as for the full evaluation; where both are due, there is the full one alone.
    light_evaluation.every = 5
    light_evaluation.pairs = 250
    light_evaluation.opponents = ("discard_only", "heuristic_cautious")
    light_evaluation.policies = ("current", "average")
    light_evaluation.diagnostics = "light"

    config.gate = gate = ml_collections.ConfigDict()
    # After each full evaluation the policies are compared with the best so far, and take their
    # place if a test finds them better: which policy plays in it, current, average or mixture; or
    # none (no test, and no best).
    gate.policy = "average"
    # Deals of the test, each played twice with the seats swapped, at least 100.
    gate.pairs = 500
    # Probability with which a test takes a policy for better that is only as good as the best, up
    # to 0.5; there are as many tests as full evaluations.
    gate.significance = 0.05

    config.checkpoint = checkpoint = ml_collections.ConfigDict()
    # Iterations between two checkpoints (also after the first and the last).
    checkpoint.every = 10
    # Full states kept, for resuming.
    checkpoint.keep = 2
    # Policies kept, for evaluation; 0 = all.
    checkpoint.keep_policies = 0

    config.log = log = ml_collections.ConfigDict()
    # Write TensorBoard files too (needs the extra `tensorboard`).
    log.tensorboard = False
    return config


def _value_network(config: ml_collections.ConfigDict) -> None:
    """Read advantages off a value network, and carry them on from iteration to iteration.

    Every decision of a few dozen rounds gives a sample, whose only noise is the next card and whose
    bias is the value network's (docs/algorithm.md). Iterations are many and small: each learns
    values and advantages from its own rounds alone.
    """
    config.traversal.scheme = "critic"
    config.traversal.traversals = 48
    config.traversal.lanes = 96
    # An iteration's samples; those of the average policy are drawn from all iterations.
    config.memory.advantage_capacity = 16_384
    config.memory.value_capacity = 32_768
    config.memory.strategy_capacity = 200_000
    config.advantage.start = "warm"
    config.advantage.cumulative = "bootstrapped"
    # Steps of 11 / (t + 10): early iterations, of bad values, are soon forgotten.
    config.advantage.weighting = "discounted"
    config.advantage.discount = 10.0
    config.advantage.min_step = 0.05
    # How bad an action is must stand out from what the network gets wrong.
    config.advantage.keep_negative = True
    config.strategy.weighting = "discounted"
    config.strategy.discount = 6.0
    config.advantage.updates = 16
    config.value.updates = 32
    config.strategy.updates = 24
    config.strategy.every = 2
    for fit in (config.advantage, config.value, config.strategy):
        fit.batch_size = 1024
        fit.learning_rate = 1.5e-3
        fit.decay_iterations = 300
        fit.annealed = True
    config.gate.policy = "current"


def _smoke(config: ml_collections.ConfigDict) -> None:
    """Learn full Lost Cities to beat a bot that knows it, in four to eight minutes on two cores.

    Seed 0 wins 85 % of rounds against heuristic_cautious by its current policy and 71 % by the
    average policy; other seeds learn sooner or later.
    """
    _value_network(config)
    config.name = "smoke"
    config.iterations = 80
    config.evaluation.every = 80
    config.evaluation.pairs = 500
    config.evaluation.opponents = ("random", "discard_only", "heuristic_cautious")
    config.light_evaluation.every = 0
    config.gate.pairs = 250
    config.checkpoint.every = 20


def _cpu(config: ml_collections.ConfigDict) -> None:
    """Learn to beat every bot, in half an hour to an hour on two cores.

    Expect of the current policy against heuristic_cautious +30 points a round after 100 to 150
    iterations, 91 to 94 % of rounds and +45 to +52 after 250, 92 to 97 % and +51 to +65 from 500 on
    (two seeds; docs/strength.md).
    """
    _value_network(config)
    config.iterations = 1000
    config.evaluation.every = 100
    config.light_evaluation.every = 20
    config.light_evaluation.policies = ("current",)
    config.checkpoint.every = 20


def _gpu(config: ml_collections.ConfigDict) -> None:
    """Fill a single accelerator; not measured on one yet."""
    _value_network(config)
    config.iterations = 1000
    config.network.width = 128
    config.traversal.traversals = 1024
    config.traversal.lanes = 2048
    config.memory.advantage_capacity = 262_144
    config.memory.value_capacity = 524_288
    config.memory.strategy_capacity = 5_000_000
    for fit in (config.advantage, config.value, config.strategy):
        fit.batch_size = 8192
    config.advantage.updates = 32
    config.value.updates = 64
    config.strategy.updates = 48
    config.evaluation.every = 100
    config.evaluation.pairs = 5000
    config.light_evaluation.every = 20
    config.light_evaluation.pairs = 2500
    config.gate.pairs = 5000
    config.checkpoint.every = 20


def _deep_cfr(config: ml_collections.ConfigDict) -> None:
    """Leave the base as it is: reservoirs of all iterations' samples, branches played to the end.

    Expect 98 to 99 % of rounds won against random after 30 to 50 iterations, a quarter of an hour
    or so on two cores, by the current policy, which breaks even with discard_only
    (docs/strength.md).
    """


def _ppo(config: ml_collections.ConfigDict) -> None:
    """Learn by PPO in self-play: the control, with the networks and evaluations of `cpu`.

    Expect 98 % of rounds and +50 points against heuristic_cautious in half an hour on two cores,
    and to lose to what `cpu` learns in that time (docs/strength.md).
    """
    _cpu(config)
    config.name = "ppo"
    config.algorithm = "ppo"
    config.iterations = 2000
    config.ppo.decay_iterations = 1000


def _exploit(config: ml_collections.ConfigDict) -> None:
    """Learn by PPO to answer the fixed player `ppo.opponent`."""
    _ppo(config)
    config.name = "exploit"
    config.ppo.opponent = "pretrained:current"
    config.ppo.start = "pretrained"
    # Against a strong player there is little to win, and much noise.
    config.iterations = 600
    config.ppo.lanes = 512
    config.ppo.learning_rate = 4e-4
    config.ppo.decay_iterations = 300
    config.evaluation.opponents = ("opponent",)
    config.light_evaluation.opponents = ("opponent",)
    config.light_evaluation.policies = ("current", "average")
    config.light_evaluation.pairs = 500
    config.evaluation.diagnostics = "light"
    config.gate.policy = "none"


def _large(config: ml_collections.ConfigDict) -> None:
    """Train a perceptron of six layers of 1024 units by `deep_cfr`, on a large accelerator."""
    config.name = "large"
    config.iterations = 500
    config.network.kind = "mlp"
    config.network.width = 1024
    config.network.depth = 6
    config.network.layer_norm = True
    config.network.residual = True
    config.traversal.traversals = 65_536
    config.traversal.lanes = 8192
    config.memory.advantage_capacity = 10_000_000
    config.memory.strategy_capacity = 10_000_000
    for fit in (config.advantage, config.strategy):
        fit.updates = 2000
        fit.batch_size = 8192
        fit.learning_rate = 3e-4
    config.evaluation.pairs = 10_000
    config.light_evaluation.pairs = 2500
    config.gate.pairs = 5000
    config.checkpoint.every = 20


def _predecessor(config: ml_collections.ConfigDict) -> None:
    """Do the work of the predecessor's iterations, for timing; it does not learn to play well.

    Its networks were one per player, ReLU perceptrons, here too for the average policy (it had
    one network for that).
    """
    config.name = "predecessor"
    config.network.kind = "mlp"
    config.network.width = 512
    config.network.depth = 3
    config.network.per_player = True
    config.traversal.scheme = "outcome"
    config.traversal.traversals = 280
    config.traversal.lanes = 280
    config.memory.advantage_capacity = 2_000_000
    config.memory.strategy_capacity = 2_000_000
    config.advantage.updates = 512
    config.advantage.batch_size = 1024
    config.strategy.updates = 512
    config.strategy.batch_size = 1024
    config.evaluation.every = 5
    config.evaluation.pairs = 500
    config.evaluation.policies = ("average",)
    config.light_evaluation.every = 0
    config.gate.policy = "none"


_PRESETS = {
    "smoke": _smoke,
    "cpu": _cpu,
    "gpu": _gpu,
    "large": _large,
    "deep_cfr": _deep_cfr,
    "ppo": _ppo,
    "exploit": _exploit,
    "predecessor": _predecessor,
}


def _preset_for_device() -> str:
    import jax  # Only the bare default needs to know the device.

    return "cpu" if jax.default_backend() == "cpu" else "gpu"
