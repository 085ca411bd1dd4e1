package statefile

// SetPart makes the parts of uploads smaller, so that a test needn't send gigabytes.
func (b *Bucket) SetPart(bytes int64) { b.part = bytes }
