"""Files that anyone may have written, read with bounds; hashes of files; where the shipped flows lie."""
