"""One run: its folder, where it begins, its steps, from config to finished results."""
