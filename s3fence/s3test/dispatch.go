package s3test

import (
	"strconv"
	"unicode/utf8"
)

// dispatch lets a request take effect.
func (s *Server) dispatch(c *call) *answer {
	if c.Key != "" {
		if !utf8.ValidString(c.Key) {
			return fail("InvalidURI")
		}
		if len(c.Key) > maxKeyLength {
			return fail("KeyTooLongError", "Size", strconv.Itoa(len(c.Key)), "MaxSizeAllowed", strconv.Itoa(maxKeyLength))
		}
	}
	switch c.Op {
	case ListBuckets:
		return s.listBuckets(c)
	case CreateBucket:
		return s.createBucket(c)
	case HeadBucket:
		return s.headBucket(c)
	case DeleteBucket:
		return s.deleteBucket(c)
	case GetBucketLocation:
		return s.getBucketLocation(c)
	case ListObjectsV2:
		return s.listObjects(c)
	case PutObject:
		return s.putObject(c)
	case GetObject, HeadObject:
		return s.getObject(c)
	case DeleteObject:
		return s.deleteObject(c)
	case DeleteObjects:
		return s.deleteObjects(c)
	case CreateMultipartUpload:
		return s.createUpload(c)
	case UploadPart:
		return s.uploadPart(c)
	case CompleteMultipartUpload:
		return s.completeUpload(c)
	case AbortMultipartUpload:
		return s.abortUpload(c)
	case ListParts:
		return s.listParts(c)
	case ListMultipartUploads:
		return s.listUploads(c)
	default:
		return fail("NotImplemented")
	}
}
