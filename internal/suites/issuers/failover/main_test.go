package failover_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	etcdnode.Main()
	m.Run()
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
