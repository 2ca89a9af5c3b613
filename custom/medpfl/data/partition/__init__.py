"""Which site gets which images of one data set."""
