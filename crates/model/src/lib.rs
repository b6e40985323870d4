//! Planning formulas and simulators: pure, and reproducible from a seed.
