"""Pickles of earlier versions name `Plans` here."""

from thalweg._core.plan_cache import Plans

__all__ = ["Plans"]
