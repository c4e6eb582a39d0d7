"""What `attach` returns, and how it rides on an optimizer's steps."""
