//! The contracts as other processes meet them: bytes, fingerprints, and every schema ever published.
