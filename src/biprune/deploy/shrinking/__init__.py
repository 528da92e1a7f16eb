"""The smaller model, and the certificate that it computes the same."""
