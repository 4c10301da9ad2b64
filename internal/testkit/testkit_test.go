package testkit_test

import (
	"log"
	"log/slog"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

func TestEventually(t *testing.T) {
	looked := 0
	testkit.Eventually(t, "the third look", func() bool { looked++; return looked == 3 })
	if looked != 3 {
		t.Errorf("looked %d times, want 3", looked)
	}
}

func TestReceive(t *testing.T) {
	sent := make(chan int)
	go func() { sent <- 7; close(sent) }()
	if got := testkit.Receive(t, "a number", sent); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
	if got := testkit.Receive(t, "the end", sent); got != 0 {
		t.Errorf("got %d from a closed channel, want 0", got)
	}
}

func TestCaptureDefault(t *testing.T) {
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Run("inside", func(t *testing.T) {
		testkit.CaptureDefault(t)
		if slog.Default() == logger {
			t.Error("slog's default logger is the same")
		}
	})
	if slog.Default() != logger || log.Writer() != writer || log.Flags() != flags {
		t.Error("the default loggers were not put back")
	}
}

func TestLoggerAfterTheTest(t *testing.T) {
	var logger *slog.Logger
	t.Run("inside", func(t *testing.T) { logger = testkit.Logger(t) })
	logger.Info("dropped") // else it would panic, or show up under another test
}
