"""What a run left behind, made readable: terminal tables, comparisons over seeds, one HTML page, a history as CSV."""
