"""Pickles of earlier versions name `Processing` here."""

from thalweg.core.gradient_transforms import GradientTransforms as Processing

__all__ = ["Processing"]
