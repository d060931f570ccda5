"""Pickles of earlier versions name shapes here."""

from thalweg._base.static_shape import Dimension, DimensionShape, Shape, UnknownShape

__all__ = ["Dimension", "DimensionShape", "Shape", "UnknownShape"]
