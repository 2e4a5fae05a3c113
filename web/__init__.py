"""The course as a web page: built from the chapters, with pieces that compute in the reader's browser."""
