"""Pickles of earlier versions name `Around` here."""

from thalweg.optim.step_options import StepOptions as Around

__all__ = ["Around"]
