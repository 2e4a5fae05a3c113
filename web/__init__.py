"""The course as a web page: built from the READMEs, with pieces that compute in the reader's browser."""
