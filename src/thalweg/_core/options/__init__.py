"""Options around the update of any rule: one option or mechanism per file."""
