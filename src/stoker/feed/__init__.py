"""From a loader's options to its iterator: the one place that knows the order of the stages."""
