//! Engines, lanes and the executor: what runs a plan.
