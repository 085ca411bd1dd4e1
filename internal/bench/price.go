package main

import "strings"

// What requests to a bucket cost, in US dollars for a thousand: what is published for Amazon S3 Standard in us-east-1, as of November 2026.
// Other providers charge less, or nothing; what grows is the same.
const (
	dollarsPerThousandWrites = 0.005  // PUT, COPY, POST and LIST
	dollarsPerThousandReads  = 0.0004 // GET, HEAD and everything else; DELETE is free
)

// perMonth is how often a month has what figures are counted by; a month has 30 days.
var perMonth = map[string]float64{"min": 30 * 24 * 60, "hour": 30 * 24}

// dollars is what a month of requests costs. Figures are by unit; those of S3's operations are a minute's or an hour's.
func dollars(figures map[string]float64) float64 {
	sum := 0.0
	for unit, count := range figures {
		operation, each, _ := strings.Cut(unit, "/")
		switch operation {
		case "PutObject", "ListObjectsV2", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload":
			sum += count * perMonth[each] / 1000 * dollarsPerThousandWrites
		case "GetObject", "HeadObject", "GetBucketLocation":
			sum += count * perMonth[each] / 1000 * dollarsPerThousandReads
		}
	}
	return sum
}
