//! Moves bytes between storage and memory by the straightest way, and says which way they went.
