//! Directories (to be written).
