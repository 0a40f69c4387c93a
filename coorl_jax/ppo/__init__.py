"""Proximal policy optimisation in self-play, or against a fixed player: the control of Deep CFR."""
