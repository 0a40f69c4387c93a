"""The process around the array programs: jax's flags, the device, compilations."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import jax

CACHE_VARIABLE = "COORL_JAX_CACHE_DIR"
"""Environment variable: where compiled programs are kept between runs, or "off"."""

_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


def configure() -> None:
    """Set jax's flags; call it before anything is compiled.

    Raises:
      ValueError: when the directory for compiled programs cannot be used.
    """
    directory = os.environ.get(CACHE_VARIABLE) or str(_user_cache() / "coorl_jax")
    if directory == "off":
        jax.config.update("jax_compilation_cache_dir", None)
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{CACHE_VARIABLE}={directory}: must be a directory that can be written "
            f"({error.strerror}); e.g. off"
        ) from None
    jax.config.update("jax_compilation_cache_dir", directory)
    # What compiles faster than this is not worth a file.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def describe_device() -> str:
    """Return the devices in words, e.g. "1 gpu (NVIDIA H200)" or "1 cpu"."""
    devices = jax.local_devices()
    kind = devices[0].device_kind
    detail = "" if kind.lower() == devices[0].platform else f" ({kind})"
    return f"{len(devices)} {devices[0].platform}{detail}"


class CompileCounter:
    """Counts compilations and the seconds they take, through `jax.monitoring`.

    A context manager; a program taken from the cache on disk counts as compiled.
    """

    def __init__(self) -> None:
        # (start, end) of what was traced, lowered or compiled, in seconds of a common clock.
        self._spans: list[tuple[float, float]] = []
        self._compilations = 0
        # Matches are played, and so compiled, in several threads.
        self._lock = threading.Lock()

    def __enter__(self) -> CompileCounter:
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, *exception: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def take(self) -> dict[str, float]:
        """Return `compile_seconds` and `compilations` since the last call."""
        seconds = sum(end - start for start, end in self._spans)
        taken = {"compile_seconds": seconds, "compilations": self._compilations}
        self._spans, self._compilations = [], 0
        return taken

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event not in _COMPILE_EVENTS:
            return
        end = time.perf_counter()
        start = end - duration_secs
        # Tracing a function traces those it calls, whose events come first: count them once.
        with self._lock:
            while self._spans and self._spans[-1][0] >= start:
                self._spans.pop()
            self._spans.append((start, end))
            self._compilations += event == _COMPILE_EVENTS[-1]


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
