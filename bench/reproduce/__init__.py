"""One command that trains and measures the paper's tables and figures."""
