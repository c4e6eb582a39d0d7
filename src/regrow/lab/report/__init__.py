"""Looking at runs: the page with figures and tables, and what a terminal shows."""

from regrow.core.extras import check_installed

check_installed("lab", "a report", "matplotlib", "jinja2")
