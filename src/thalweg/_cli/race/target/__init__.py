"""The race to a target: AlgoPerf's protocol, with tuning as a part of what is measured."""
