"""Profile in, plan out; pure."""
