package lockadmin

import "github.com/fencepost-go/fencepost/lockclient/driver"

// These types are package driver's, so that a lock server on another engine links no
// PostgreSQL.
type (
	// LeaseState says whether somebody has a lease.
	LeaseState = driver.LeaseState
	// LeaseInfo is what the server knows about one resource.
	LeaseInfo = driver.LeaseInfo
	// ListOptions configures [Operator.List]. The zero value is the default.
	ListOptions = driver.ListOptions
	// AuditRecord is one record of fencepost.audit.
	AuditRecord = driver.AuditRecord
	// AuditOptions configures [Operator.Audit]. The zero value is the default.
	AuditOptions = driver.AuditOptions
	// ForceUnlockOptions configures [Operator.ForceUnlock]. The zero value is the
	// default.
	ForceUnlockOptions = driver.ForceUnlockOptions
	// ForceUnlocked is what [Operator.ForceUnlock] did.
	ForceUnlocked = driver.ForceUnlocked
	// LeaseChangedError says what there is instead of the expected lease. It unwraps
	// to [ErrLeaseChanged].
	LeaseChangedError = driver.LeaseChangedError
)

// The states.
const (
	StateHeld    = driver.StateHeld
	StateExpired = driver.StateExpired
	StateFree    = driver.StateFree
)

// ErrLeaseChanged: the resource's lease is not the one that
// ForceUnlockOptions.ExpectedLeaseID names. Nothing was changed.
var ErrLeaseChanged = driver.ErrLeaseChanged
