"""The paper's tables and figures, trained and measured anew by one command."""
