"""Which variable each tensor of a file becomes, and with which axes."""
