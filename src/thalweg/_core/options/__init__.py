"""What is done around the update of any rule: one option, or one mechanism, in each file."""
