"""Pickles of earlier versions name `Plans` here."""

from thalweg.core.plan_cache import Plans

__all__ = ["Plans"]
