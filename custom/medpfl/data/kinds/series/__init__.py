"""Time series: windows of several channels with one class each, from npz files or from PAMAP2's recordings."""
