"""Looking at runs: the page with figures and tables, and what a terminal shows."""
