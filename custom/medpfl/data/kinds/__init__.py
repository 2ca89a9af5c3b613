"""The kinds of data that a run can have: npz files, folders of pictures, CT scans, a function of one's own."""
