"""What methods do in every step beside masking: small objects, one file each."""
