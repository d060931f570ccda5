"""What of a script for TensorFlow is in `thalweg.tf`, found without running the script."""
