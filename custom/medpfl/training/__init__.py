"""How a site takes its steps."""
