//! Links between neighbours.
