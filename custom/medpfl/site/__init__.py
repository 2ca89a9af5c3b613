"""A site's side: policy, contract, gate and ledger; its tasks; what it keeps, and the model it uses. Without FLARE."""
