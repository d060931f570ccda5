"""Scanner of TensorFlow scripts for names that `thalweg.tf` has, without running the script."""
