"""Pickles of earlier versions name `Processing` here."""

from thalweg._core.gradient_transforms import GradientTransforms as Processing

__all__ = ["Processing"]
