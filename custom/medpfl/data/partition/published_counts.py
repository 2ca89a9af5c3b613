"""Training images by site and class that a paper prints for its experiments on BloodMNIST.

Source: Federated Impression for Learning with Distributed Heterogeneous Data (FedImpres), supplement, "Dataset
Visualization & Details". Row: client 1 to 8; column: class 1 to 8, which are MedMNIST's labels 0 to 7.

The table headed 0.01 has 10,764 images, 90 % of the training part (class by class within 2 %). The one headed 0.005 has
5,980, half of the training part. In its row of client 6 the print runs "0" and "432" into one cell, and another 0 too
many follows. 432 is read as class 5: of that class only client 7 has another image, and the 433 are half of its 849
training images, as for every other class.

Which Dirichlet parameter they look like: the likelihood of the counts, classes independent, is largest at 0.082 for
the table headed 0.01 (95 % by likelihood ratio: 0.054 to 0.119) and at 0.0051 for the one headed 0.005 (0.0009 to
0.0155). The authors' public script draws with 0.1, gives a site that has its share of all images nothing of further
classes, and draws again until no site has fewer than ten. The first table fits that: clients 6 and 7 have none of the
classes that follow once they are full, and client 8, to which rounding gives what is left, a single image.
"""

NAME = "fedimpres"
"""Of these partitions, before the table's heading."""
COUNTS: dict[str, list[list[int]]] = {
    "0.01": [
        [5, 0, 0, 0, 22, 577, 185, 58],
        [0, 386, 67, 2, 73, 304, 3, 0],
        [0, 0, 0, 0, 0, 0, 1195, 181],
        [0, 120, 0, 0, 6, 1, 0, 768],
        [0, 28, 6, 0, 4, 1, 687, 486],
        [0, 1, 705, 0, 661, 0, 0, 0],
        [760, 1418, 0, 0, 0, 0, 0, 0],
        [1, 8, 208, 1836, 0, 0, 1, 0],
    ],
    "0.005": [
        [11, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 533, 0, 0, 0, 0, 0],
        [0, 0, 0, 996, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 483, 0, 0],
        [0, 0, 0, 0, 0, 0, 1207, 0],
        [407, 0, 0, 0, 432, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 856],
        [0, 1054, 0, 0, 0, 0, 0, 0],
    ],
}
"""By the heading of the table."""
