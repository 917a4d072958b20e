"""Forward passes of transformers models: padded, packed, chunked, over peers; and decoding."""
