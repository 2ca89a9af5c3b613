"""Engines that carry messages between the server and the sites."""
