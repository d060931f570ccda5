"""Race to a target loss by AlgoPerf's protocol, which includes the tuning."""
