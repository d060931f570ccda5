"""What the steps of a training say of themselves, and what in it is not usual."""

from thalweg.optim.diagnostics.spikes import Spikes, Warned

__all__ = ["Spikes", "Warned"]
