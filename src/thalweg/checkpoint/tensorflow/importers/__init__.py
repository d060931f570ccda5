"""An optimizer made of what a file tells, and set to what it holds."""
