"""The kinds of data that a run can have.

Npz files, folders of pictures, CT and MR scans, images with masks, time series, and a function of one's own.
"""
