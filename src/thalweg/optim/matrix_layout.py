"""Public home of `MatrixLayout`."""

from thalweg._base.matrix_layout import MatrixLayout as MatrixLayout
